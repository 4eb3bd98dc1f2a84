"""What answers: text, tensors, hooks, generated text; and how calls share a batch."""
