"""What the model is asked to predict: from parameters and a batch to loss and metrics.

An objective is a frozen dataclass with
  losses             names of the terms that add up to the loss
  metrics            names of all terms, the losses among them
  init(key)          parameters, as the model boxes them
  counts(batch)      what each loss is divided by, a function of the batch alone
  terms(params, batch, dropout_keys)
                     all losses and metrics as `Term`s
A term is a sum and a count that stay apart until they are reported. The loss of a batch
is the sum over losses of sum / count with the counts of the whole batch, so that it
does not depend on how the batch is cut into micro-batches or spread over devices.
"""
