"""Export of plans to MSCCL and MSCCL++, and import of such files for the verifier."""
