"""Actions of adaptation: masters tuned, plan books made anew, plans made in the background."""
