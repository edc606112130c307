"""The backend `dsp`: Qualcomm's Hexagon HTP, by QNN inside ONNX Runtime."""
