"""From a model of transformers to a program file. Needs torch and transformers."""
