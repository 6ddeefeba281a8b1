def chunks(items, size):
    return [items[k : k + size] for k in range(0, len(items), size)]
