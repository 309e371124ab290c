"""The demo: installed packages' images go in; shards, packed batches, a trained tiny model and a table come out."""
