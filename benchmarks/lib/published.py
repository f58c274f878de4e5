"""Published figures that pages show beside measured ones."""

from typing import NamedTuple


class Figures(NamedTuple):
    """Filtered metrics of link prediction on a test set, with as many digits as the source has."""

    source: str
    mrr: str
    hits_1: str
    hits_10: str


SAFAVI = "Safavi and Koutra 2020"  # arXiv 2009.07810
LIBKGE = "Ruffinelli et al. 2020"  # the README of LibKGE: searches of equal effort
SUN = "Sun et al. 2019"  # arXiv 1902.10197
LACROIX = "Lacroix et al. 2018"  # the README of their code: rank 2000
CHEN = "Chen et al. 2021"  # arXiv 2110.02834
ZHANG = "Zhang et al. 2020"  # arXiv 2011.05816

LINK_PREDICTION = {  # by config; a model without a config stands here too
    "codex-m/transe": Figures(SAFAVI, "0.303", "0.223", "0.454"),
    "codex-m/complex_n3": Figures(SAFAVI, "0.337", "0.262", "0.476"),
    "codex-m/complex_n3_rp": Figures(CHEN, "0.352", "0.277", "0.490"),
    "codex-m/conve": Figures(SAFAVI, "0.318", "0.239", "0.464"),
    "codex-m/rescal_dura": Figures(SAFAVI, "0.317", "0.244", "0.456"),
    "codex-m/tucker": Figures(SAFAVI, "0.328", "0.259", "0.458"),
    "fb15k237/transe": Figures(LIBKGE, "0.313", "0.221", "0.497"),
    "fb15k237/distmult": Figures(LIBKGE, "0.343", "0.250", "0.531"),
    "fb15k237/complex": Figures(LIBKGE, "0.348", "0.253", "0.536"),
    "fb15k237/conve": Figures(LIBKGE, "0.339", "0.248", "0.521"),
    "fb15k237/rotate": Figures(SUN, "0.338", "0.241", "0.533"),
    "fb15k237/complex_n3": Figures(LACROIX, "0.37", "0.27", "0.56"),
    "fb15k237/complex_n3_rp": Figures(CHEN, "0.388", "0.298", "0.568"),
    "fb15k237/rescal_dura": Figures(ZHANG, "0.368", "0.276", "0.550"),
    "wn18rr/transe": Figures(LIBKGE, "0.228", "0.053", "0.520"),
    "wn18rr/distmult": Figures(LIBKGE, "0.452", "0.413", "0.530"),
    "wn18rr/complex": Figures(LIBKGE, "0.475", "0.438", "0.547"),
    "wn18rr/conve": Figures(LIBKGE, "0.442", "0.411", "0.504"),
    "wn18rr/conve_l2": Figures(LIBKGE, "0.442", "0.411", "0.504"),
    "wn18rr/rotate": Figures(SUN, "0.476", "0.428", "0.571"),
    "wn18rr/complex_n3": Figures(LACROIX, "0.49", "0.44", "0.58"),
    "wn18rr/complex_n3_rp": Figures(CHEN, "0.488", "0.443", "0.578"),
    "wn18rr/rescal_dura": Figures(ZHANG, "0.498", "0.455", "0.577"),
}

# Triple classification of CoDEx-M against hard negatives (Safavi and Koutra 2020), by model.name:
# accuracy, F1.
CLASSIFICATION = {
    "transe": (0.797, 0.803),
    "complex": (0.824, 0.818),
    "conve": (0.826, 0.829),
    "rescal": (0.818, 0.815),
    "tucker": (0.823, 0.816),
}
