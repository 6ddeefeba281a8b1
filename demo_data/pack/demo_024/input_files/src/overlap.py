def overlap(a, b):
    return min(a[1], b[1]) - max(a[0], b[0])
