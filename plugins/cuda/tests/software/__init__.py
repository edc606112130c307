"""An NVIDIA GPU played by the CPU: NVIDIA's two libraries, and an nvcc whose compiler is g++. See driver.cpp."""
