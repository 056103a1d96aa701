"""Representations between a demand and a program: deliveries, sends, slots, lowering."""
