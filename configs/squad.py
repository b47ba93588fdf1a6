r"""Fine-tune a pretrained encoder on SQuAD, version 1.1 (`v1`) or 2.0 (`v2`).

Source: the paper, 4.2 and 4.3: v1 with batch 32, learning rate 5e-5 and 3 epochs; v2
        with batch 48, 5e-5 and 2 epochs. Windows of 384 tokens with a stride of 128
        and warmup in a tenth of the steps: google-research/bert, run_squad.py.
        The README of google-research/bert has, on the development set of 1.1,
        EM 81.2 and F1 88.4 for Base (batch 12, 3e-5, 2 epochs) and EM 84.4 and F1 90.9
        for Large (batch 24), where F1 is between 90.5 and 91.0 from run to run.
        On 2.0, Large has EM 78.7 and F1 81.9 (paper, table 3; 79.0 and 81.8 in the
        README of ALBERT).
Run:    python -m bert_jax.run.finetune_squad --config=configs/squad.py:v1 \
            --config.task.train=train-v1.1.json --config.task.eval=dev-v1.1.json \
            --config.init_from=PRETRAIN_WORKDIR --workdir=DIR
Cost:   not measured yet.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants

# Batch size, epochs.
VARIANTS = {"v1": (32, 3.0), "v2": (48, 2.0)}


def get_config(arg: str = ""):
    """Return the recipe; `arg` is the version, "v1" or "v2", and maybe "smoke"."""
    version, smoke = recipe_variants.parse(arg, tuple(VARIANTS))
    config = config_lib.FinetuneConfig(task=config_lib.SquadConfig())
    cfg = config_lib.to_configdict(config)
    batch_size, epochs = VARIANTS[version]
    cfg.update(batch_size=batch_size, epochs=epochs)
    cfg.optimizer.update(learning_rate=5e-5, warmup_fraction=0.1)
    cfg.task.update(length=384, stride=128, max_question=64, max_answer=30)
    cfg.task.no_answers = version == "v2"
    if smoke:
        recipe_variants.shrink_finetuning(cfg)
    return cfg
