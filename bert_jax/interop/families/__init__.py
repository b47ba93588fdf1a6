"""Families of models in `transformers`, one module each.

To add a family, write its module and list it in `FAMILIES`.
"""

from bert_jax.interop.families.albert import ALBERT
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.families.deberta import DEBERTA
from bert_jax.interop.families.distilbert import DISTILBERT
from bert_jax.interop.families.electra import ELECTRA
from bert_jax.interop.families.eurobert import EUROBERT
from bert_jax.interop.families.modernbert import MODERNBERT
from bert_jax.interop.families.nomicbert import NOMICBERT
from bert_jax.interop.families.roberta import CAMEMBERT, ROBERTA, XLM_R
from bert_jax.interop.families.ultrabert import ULTRABERT
from bert_jax.interop.families.xlnet import XLNET

# In the order in which an export tries them. BERT comes last, as it exports anything.
FAMILIES = (
    XLNET,
    DEBERTA,
    MODERNBERT,
    NOMICBERT,
    EUROBERT,
    ULTRABERT,
    ALBERT,
    ELECTRA,
    ROBERTA,
    XLM_R,
    CAMEMBERT,
    DISTILBERT,
    BERT,
)
