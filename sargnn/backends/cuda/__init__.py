"""A GPU: kernels in Triton, products by PyTorch. ``launch`` says on what they run; each file has the kernels of one idea."""
