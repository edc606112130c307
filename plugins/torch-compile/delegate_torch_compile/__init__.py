"""The backend of `torch.compile(model, backend="delegate")`: lowers graphs of torch's compiler like any program."""
