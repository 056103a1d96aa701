"""The grid: configurations of all leaf types that a plan chooses from."""

from headrace.index.configuration import Configuration


def grid() -> tuple[Configuration, ...]:
    """Return the configurations: 46, of all types of leaves.

    Hashed leaves of a page to some tens, loose and tight; fragments of log leaves of a few lines to
    some pages, below nodes of many slots and of few; leaves of gapped arrays by their size, density
    and limits (Msi, Msh), with ALEX's knob in the middle and at its ends; two perfect ones.
    """
    return (*_hashed(), *_log(), *_gapped(), *_perfect())


def _hashed() -> list[Configuration]:
    by_size = [
        Configuration(leaf="hashed", fragment_keys=keys, fill=fill)
        for keys in (128, 256, 512, 1024, 2048)
        for fill in (0.5, 0.6, 0.75, 0.95)
    ]
    return [*by_size, Configuration(leaf="hashed", fragments=1024, initial_fragments=2)]


def _log() -> list[Configuration]:
    by_search = [
        Configuration(leaf="log", fragment_keys=keys, fingerprints=fingerprints)
        for fingerprints, most in ((True, 512), (False, 256))
        for keys in (32, 64, 128, 256, 512)
        if keys <= most
    ]
    tight = [Configuration(leaf="log", fragment_keys=keys, fill=0.95) for keys in (64, 128)]
    few = Configuration(leaf="log", fragment_keys=128, fragments=1024, initial_fragments=2)
    return [*by_search, *tight, few]


def _gapped() -> list[Configuration]:
    by_size = [
        Configuration(leaf="gapped", leaf_keys=keys, fill=fill)
        for keys in (512, 1024, 4096)
        for fill in (0.6, 0.75)
    ]
    ends = [Configuration(leaf="gapped", insert_fraction=share) for share in (0.0, 1.0)]
    limits = [
        Configuration(leaf="gapped", leaf_keys=1024, max_search=search, max_shifts=shifts)
        for search, shifts in ((1.0, 8.0), (8.0, 128.0))
    ]
    return [*by_size, *ends, *limits, Configuration(leaf="gapped", leaf_keys=16384)]


def _perfect() -> list[Configuration]:
    return [Configuration(leaf="perfect", leaf_keys=keys) for keys in (1024, 4096)]
