r"""Fine-tune a pretrained encoder to tag words: named entities, parts of speech.

Source: BERT paper, 5.3 and A.3: batches of 16 and 32, learning rates of 5e-5, 3e-5 and
        2e-5, and 2 to 4 epochs, of which the best on the evaluation set is kept. Here:
        32, 3e-5 and 3, and warmup in a tenth of the steps, as in google-research/bert.
        The paper gives a sentence of CoNLL-2003 its document as context; this recipe
        gives none.
Expect: CoNLL-2003 (paper, table 7): BERT-Base F1 96.4 on the evaluation set and 92.4 on
        the test set, BERT-Large 96.6 and 92.8, cased. Compare `lenient_f1`, which
        decodes tags as conlleval does; `f1` is strict.
Run:    python -m bert_jax.run.finetune_tagger --config=configs/tagger.py \
            --config.task.train=TRAIN.conll --config.task.eval=EVAL.conll \
            --config.task.test=TEST.conll \
            --config.init_from=PRETRAIN_WORKDIR --workdir=DIR
Cost:   not measured for a model of this size.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants


def get_config(arg: str = ""):
    """Return the recipe; `arg` is "" or "smoke"."""
    _, smoke = recipe_variants.parse(arg)
    task = config_lib.TaggingConfig(length=128)
    cfg = config_lib.to_configdict(config_lib.FinetuneConfig(task=task))
    cfg.update(batch_size=32, epochs=3.0)
    cfg.optimizer.update(learning_rate=3e-5, warmup_fraction=0.1)
    if smoke:
        recipe_variants.shrink_finetuning(cfg)
    return cfg
