"""Fine-tuning tasks: examples to features, predictions to metrics."""
