r"""A student with half of BERT-Base's layers, which imitates a teacher's predictions.

Source: DistilBERT (Sanh et al. 2019): BERT-Base's width with 6 layers and without
        segments; weights of 5 for the teacher's loss, 2 for the loss of masked tokens
        and 1 for the cosine of the last hidden states (here 2.5, 1 and 0.5);
        temperature 2; no next sentence. From its code (train.py and distiller.py):
        batch, optimizer and learning rate.
Differences: the student begins with random weights, the authors' with layers 0, 2, 4,
        7, 9 and 11 of the teacher. It imitates the teacher at masked tokens only. These
        are drawn at one rate; the authors draw rare tokens more often. Rows are full of
        sentences; a row of the authors is a line of text, or a part of a long one. The
        number of steps is our choice.
Run:    python -m bert_jax.run.pretrain --config=configs/distillation.py \
            --config.objective.teacher=CHECKPOINT --config.data.corpus=DIR \
            --workdir=DIR
        The teacher is a workdir, a checkpoint in it, or the folder of a published
        model, and predicts masked tokens. If its hidden size is another, pass
        --config.objective.hidden_weight=0. The corpus has its tokenizer:
        `run.build_corpus --tokenizer=CHECKPOINT` reads that of a published one. The
        teacher must be there when the run resumes, too. 32 chips and more need another
        batch, such as '--config.phases[0].batch_size=2048'.
Cost:   not run yet. Each step adds the teacher's forward pass.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants


def get_config(arg: str = ""):
    """Return the recipe; `arg` is "" or "smoke"."""
    _, smoke = recipe_variants.parse(arg)
    objective = config_lib.DistillationConfig(
        segments="full_sentences", short_sequence_rate=0.0, hidden_weight=0.5
    )
    phases = (config_lib.PhaseConfig(steps=100_000, length=512, batch_size=2_000),)
    config = config_lib.PretrainConfig(objective=objective, phases=phases)
    cfg = config_lib.to_configdict(config)
    recipe_variants.set_size(cfg, num_layers=6, hidden_size=768, num_heads=12)
    cfg.encoder.update(type_vocab_size=0, activation="gelu_erf")
    cfg.encoder.pooler.activation = "relu"
    cfg.optimizer.update(learning_rate=5e-4, warmup_fraction=0.05, schedule="linear")
    # Half of the authors' norm, as the weights of the losses are half of theirs.
    cfg.optimizer.update(beta2=0.98, weight_decay=0.0, clip_norm=2.5)
    cfg.optimizer.bias_correction = True
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
        cfg.objective.hidden_weight = 0.0  # the teacher may have any width
    return cfg
