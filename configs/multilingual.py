r"""BERT-Base on several corpora, with small corpora oversampled.

Source: google-research/bert, multilingual.md: languages are drawn by their share of the
        text to the power of 0.7, normalised, for the rows and for the vocabulary.
        Shape, optimizer and steps as in configs/bert_base.py.
Run:    python -m bert_jax.run.pretrain --config=configs/multilingual.py \
            --config.data.corpus=DIR,DIR,DIR --workdir=DIR
        Each DIR is a corpus of one language. All have one tokenizer, learnt from text
        of all languages. Evaluations report each corpus under the name of its folder,
        and their weighted mean (docs/data.md).
Cost:   as configs/bert_base.py. Not run yet.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants


def get_config(arg: str = ""):
    """Return the recipe; `arg` is "" or "smoke"."""
    _, smoke = recipe_variants.parse(arg)
    cfg = config_lib.to_configdict(config_lib.PretrainConfig())
    cfg.data.weight_exponent = 0.7
    recipe_variants.set_size(cfg, num_layers=12, hidden_size=768, num_heads=12)
    cfg.optimizer.update(learning_rate=1e-4, warmup_fraction=0.01)
    cfg.phases[0].update(steps=900_000, length=128, batch_size=256)
    cfg.phases[1].update(steps=100_000, length=512, batch_size=256)
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
    return cfg
