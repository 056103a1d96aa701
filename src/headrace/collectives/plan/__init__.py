"""From a demand to a proven program: templates, lowering, proof, prediction, bound, plan book."""
