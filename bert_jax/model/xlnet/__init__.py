"""The parts of the model that only XLNet has (Yang et al. 2019)."""
