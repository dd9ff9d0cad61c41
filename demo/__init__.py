"""The demo: a real server driven through nine scenarios, each first token explained."""
