"""The paper's studies: toy figures, image tables, the demo. Needs the rest of stein; nothing needs it."""
