r"""Fine-tune a pretrained encoder on a task of GLUE, from the files of its download.

Variants: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli.

Source: Devlin et al. 2019, 4.1: batch 32, 3 epochs, the best of the learning rates
        5e-5, 4e-5, 3e-5 and 2e-5 on the evaluation set, the best of several runs for
        BERT-Large on small sets. Here 2e-5, google-research/bert's rate for MRPC and
        MNLI; --config.optimizer.learning_rate=3e-5 changes it. Length 128 and a warmup
        of a tenth of the steps: run_classifier.py.
Published, on the test sets (paper, table 1; F1 for QQP and MRPC, Spearman for STS-B,
Matthews for CoLA, otherwise accuracy; WNLI is left out there):

                   MNLI-(m/mm)   QQP  QNLI  SST-2  CoLA  STS-B  MRPC   RTE
        BERT-Base    84.6/83.4  71.2  90.5   93.5  52.1   85.8  88.9  66.4
        BERT-Large   86.7/85.9  72.1  92.7   94.9  60.5   86.5  89.3  70.1

Published, on the evaluation sets (Base: cased, Hugging Face's run_flax_glue.py, mean of
five runs, 5 epochs for MRPC, accuracy and F1 for QQP, Pearson and Spearman for STS-B,
F1 and accuracy for MRPC; Large: the README of ALBERT):

                   MNLI-m        QQP  QNLI  SST-2  CoLA         STS-B         MRPC   RTE
        Base         83.8  90.8/87.5  90.8   92.2  59.0     88.9/88.6   89.0/84.4  64.8
        Large        86.6       91.3  92.3   93.2  60.6          90.0        88.0  70.4

Run:    python -m bert_jax.run.finetune_classifier --config=configs/glue.py:mrpc \
            --config.task.folder=GLUE --config.init_from=PRETRAIN_WORKDIR --workdir=DIR
Cost:   not measured for Base and Large. Hugging Face reports 1h03m for all tasks and
        Base on a TPU v3-8.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants

VARIANTS = tuple(config_lib.GLUE)


def get_config(arg: str = ""):
    """Return the recipe; `arg` is a task, with ",smoke" for an epoch of short rows."""
    task, smoke = recipe_variants.parse(arg, VARIANTS)
    cfg = config_lib.to_configdict(config_lib.FinetuneConfig())
    cfg.task.update(name=f"glue/{task}", length=128)
    cfg.update(batch_size=32, epochs=3.0)
    cfg.optimizer.update(learning_rate=2e-5, warmup_fraction=0.1)
    if smoke:
        recipe_variants.shrink_finetuning(cfg)
    return cfg
