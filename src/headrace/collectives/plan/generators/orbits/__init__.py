"""Plans for networks in which all ranks are alike: found, proven and stored as one rank's sends."""
