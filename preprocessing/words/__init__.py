"""The word cache, its rules and its proof."""
