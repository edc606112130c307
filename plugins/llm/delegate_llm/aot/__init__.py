"""From a model of transformers to a program file. Needs torch and transformers."""

from delegate.usage_data import opt_out

opt_out(variables={"HF_HUB_DISABLE_TELEMETRY": "1"})  # for transformers, which the modules here import
