"""The parts of the model that only DeBERTa has (He et al. 2020; He et al. 2021)."""
