"""Files copied into the model repository; they run inside Triton, never here."""
