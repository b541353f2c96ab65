"""What source modules of every kind are made from: their configs, their faces, and what stands under a trace."""
