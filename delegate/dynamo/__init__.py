"""`torch.compile(model, backend="delegate")`: graphs of torch's compiler, lowered like any program."""
