r"""XLNet: tokens predicted in a random order, each from the tokens before it.

Source: Yang et al. 2019 (2.2 to 2.5, 3.1 and A.4) and zihangdai/xlnet, train.py. Rows
        of 512 tokens, of which a sixth is predicted in spans of 1 to 5; large: 500,000
        steps of 8,192 rows, 40,000 of them warmup, learning rate 4e-4 (the authors'
        repository has 2,048 rows). For base they give the data and shape of BERT-Base,
        and no training; here it is trained as BERT-Base, at length 512.

        variant  layers  hidden  heads  batch  steps      rate  warmup
        base     12      768     12     256    1,000,000  1e-4  10,000
        large    24      1,024   16     8,192  500,000    4e-4  40,000

        The authors' rows attend to 384 tokens of the rows before, and half of their
        second segments are random. Here there is no memory, and the second segment
        always follows the first. In their code dropout also follows the activation
        of the feed-forward network; here it does not, as in the paper (table 7). Their
        initial values are not truncated; ours are, at two standard deviations.
Run:    python -m bert_jax.run.train_tokenizer --kind=sentencepiece \
            --nolower_case --vocab_size=32000 --input=TEXT --output=TOKENIZER
        python -m bert_jax.run.build_corpus --tokenizer=TOKENIZER \
            --input=TEXT --output=CORPUS
        python -m bert_jax.run.pretrain --config=configs/xlnet.py:base \
            --config.data.corpus=CORPUS --workdir=DIR
Cost:   the authors' large took 5.5 days on 512 TPU v3 chips (3.1). Not run yet.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants

# Layers, hidden size, heads; steps, batch, learning rate, steps of warmup.
VARIANTS = {
    "base": (12, 768, 12, 1_000_000, 256, 1e-4, 10_000),
    "large": (24, 1024, 16, 500_000, 8192, 4e-4, 40_000),
}


def get_config(arg: str = ""):
    """Return the recipe; `arg` is a variant, with ",smoke" for a run of seconds."""
    variant, smoke = recipe_variants.parse(arg, tuple(VARIANTS))
    *size, steps, batch_size, rate, warmup = VARIANTS[variant]
    phase = config_lib.PhaseConfig(steps=steps, length=512, batch_size=batch_size)
    cfg = config_lib.to_configdict(
        config_lib.PretrainConfig(
            encoder=config_lib.EncoderConfig(positions="relative"),
            objective=config_lib.PermutationLmConfig(),
            phases=(phase,),
        )
    )
    recipe_variants.set_size(cfg, *size)
    cfg.optimizer.update(learning_rate=rate, warmup_fraction=warmup / steps)
    cfg.optimizer.schedule = "linear"
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
    return cfg
