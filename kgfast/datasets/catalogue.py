"""Addresses of data sets to download, and checksums of the files.

Files of a Git repository are pinned by commit. A checksum of 64 digits is the SHA-256 of the file.
If the SHA-256 is not known, a checksum of 40 digits is Git's object id of the file at that commit,
which ``git hash-object`` prints.
"""

from dataclasses import dataclass, field

_OFFICIAL = (
    "https://raw.githubusercontent.com/DeepGraphLearning/KnowledgeGraphEmbedding/"
    "2e440e0f9c687314d5ff67ead68ce985dc446e3a/data"
)
_CODEX = (
    "https://raw.githubusercontent.com/tsafavi/codex/3132e426c2a6b643b70bad679905a3a6270be440/data"
)
_CODEX_TYPES = {"entity2types.json": f"{_CODEX}/types/entity2types.json"}
_WIKIDATA5M = (
    "https://huggingface.co/datasets/intfloat/wikidata5m/resolve/"
    "6b2b09672129e280c0c9da97ab58154e9d535e6b"
)


@dataclass(frozen=True)
class Source:
    """Addresses and checksums of a data set's files."""

    base: str  # common beginning of the addresses of files
    files: dict[str, str]  # names and checksums
    # Names in an archive, and in the folder.
    members: dict[str, str] = field(default_factory=dict)
    # Addresses of files that do not lie under `base`.
    elsewhere: dict[str, str] = field(default_factory=dict)

    def address(self, file: str) -> str:
        return self.elsewhere.get(file, f"{self.base}/{file}")


SOURCES = {
    "wn18rr": Source(
        f"{_OFFICIAL}/wn18rr",
        {
            "entities.dict": "3dc41455a835d7523b68a2d449a8ae9429ba8cf8be7db7e29b4cbadf6fbc092f",
            "relations.dict": "0cf033f5ea243c938d86e8e5e89b43676df040b9196ce495b92382e54ad59916",
            "train.txt": "038612e783c215ee5f3ca9fbfca27b8d0739be1028fe4ee7c174aecf0b83d5df",
            "valid.txt": "453ce7202afa58094a04d2b1560ee2b02660f1c260b32ce6651c8ccedd1028ab",
            "test.txt": "0383bceaaa1096cf3c03ec021ed0048068e2355dbfc0239b292cefdac821cec5",
        },
    ),
    "fb15k237": Source(
        f"{_OFFICIAL}/FB15k-237",
        {
            "entities.dict": "55666c4fb9c2990ef809e41d3a0023503b1f927fd00a1c947f21a805608f50ac",
            "relations.dict": "e98ebcc621a217ca80d44992cdf0ef5f0eb355ff9aff0ba1a3e939f6ca8fb095",
            "train.txt": "6e4c2782169af21e9743f3b1d200886f5d595bf6bc504ec1351720949c5cdfae",
            "valid.txt": "cf6309010852f6a8d47a45df830a426415d1ee6f7a3970a8376ff1fb81db4a5c",
            "test.txt": "5711cf41623ceb4eacc50eb6108a3ca6565c7492e3caaf82a3e355cc660d1574",
        },
    ),
    "wn18": Source(
        f"{_OFFICIAL}/wn18",
        {
            "entities.dict": "c293c2541b89dc0b4a782b976918a08cfb241336084fadf541784b3685612e4d",
            "relations.dict": "686f444b1bdbd7bc43a27cabcc4626be0ec010c414a8b34fbb82e9d72fbc8139",
            "train.txt": "3c06a7ca58e648e456cc1b50859fb2b9b942ed2d",
            "valid.txt": "13347bfb5e17d1cae003e0bfe29b4716d3ab748e8cfb6af997138d37da3a51dc",
            "test.txt": "d22c19d176d4ba6a6f0d0c6bfce39ab3c16e3b20e1df6f9efe0d9ed86542fa10",
        },
    ),
    "fb15k": Source(
        f"{_OFFICIAL}/FB15k",
        {
            "entities.dict": "6d19370c054e5bac5c0c664b119862133b5e9f0e65738533a0f161a755fc3e34",
            "relations.dict": "239dccfc39cd9e8e241e842a9b5885db282173909e8d12ea49664eda2444e08d",
            "train.txt": "de7b73e2a375b38236aa02bbcdca4c4b449b6e7d",
            "valid.txt": "471929cde9cf74b1caa8348c2b601c8010d6b2f2a56bae49b4ebfd14c9bce855",
            "test.txt": "4f8c953905abea1d4d212ebc839dbe6c3c68e0b8",
        },
    ),
    "yago3-10": Source(
        f"{_OFFICIAL}/YAGO3-10",
        {
            "entities.dict": "9c3673f949e4cb84db72b90bb1f126c3692455679e77daa8691928fcefb0b273",
            "relations.dict": "676dcf10c52d3c85819b3d594b63b486280d007223c67edbe94d4a07409a10e0",
            "train.txt": "1543056ff5af6d3bf841510129529e91e9a8627c",
            "valid.txt": "c9018b77ec77e99f8d48bc3258d404f10b2049a6c7b4ac6eb663697e799dc6f5",
            "test.txt": "003887ca8a34c90fcaf9b0250b1c30a4b5f617f80f8cf0aeab9723333061598a",
        },
    ),
    "codex-s": Source(
        f"{_CODEX}/triples/codex-s",
        {
            "train.txt": "64f93b7f314f3936a6f65739721429db3f6a7c8f5a1e1104ec3bb544f7434f59",
            "valid.txt": "3831c0e57daef03c3a18cdd1a72e370b496f696c5218883d35c7d2ab8a6a772c",
            "test.txt": "27127fcb34688c4778e88a39ef3c9b540807da846021e9d9685660ac1838aca1",
            "valid_negatives.txt": (
                "c1d84860d6ee786419f1f118d0e9479c6614283b3e267afc158734389036901f"
            ),
            "test_negatives.txt": (
                "d3fb32c41f3be26d09484ace571965806f1ade0ca712551b0de684c283cdbb22"
            ),
            "entity2types.json": "9c3797961498fc312a6d62c798b250c3ad501578a8ac07c0829a2862c627a878",
        },
        elsewhere=_CODEX_TYPES,
    ),
    "codex-m": Source(
        f"{_CODEX}/triples/codex-m",
        {
            "train.txt": "d99c3437ab51690391a26d96976adf6e5494dba7ef6902e77000551bfa566556",
            "valid.txt": "11c323096367354940846b9ed940c5dabddc1d20a70474222babe7e7fd28b28d",
            "test.txt": "0575ce05e4ce915e395bb4f708e8df9547989dd4c8c71407cbfd78c19daffcf7",
            "valid_negatives.txt": (
                "454a4f66ae85495e6e7df0a9f591ed3b8b6efbbcca515414cb641a28625cbcb2"
            ),
            "test_negatives.txt": (
                "7caaf71f7a85fbd915dce8199f5b1e1744ead58e0675549fcb01c60599944648"
            ),
            "entity2types.json": "9c3797961498fc312a6d62c798b250c3ad501578a8ac07c0829a2862c627a878",
        },
        elsewhere=_CODEX_TYPES,
    ),
    "codex-l": Source(
        f"{_CODEX}/triples/codex-l",
        {
            "train.txt": "be8735738ba4728430922c630f25bf01bcc9eaac",
            "valid.txt": "f0119a22dc663e8df4a942cde7404927935b0c42e5a8980f5fb48ac6886e416f",
            "test.txt": "2d8188d6f199fc548c8e5fb97336a7ffd079240fc84c0425ed9c29d39bfdab8d",
            "entity2types.json": "9c3797961498fc312a6d62c798b250c3ad501578a8ac07c0829a2862c627a878",
        },
        elsewhere=_CODEX_TYPES,
    ),
    "wikidata5m": Source(
        _WIKIDATA5M,
        {
            "wikidata5m_transductive.tar.gz": (
                "383160990b41c0905fc03f4a8afbb9b12be1ca3591e026bde6cdc94a59542597"
            ),
        },
        {
            "wikidata5m_transductive_train.txt": "train.txt",
            "wikidata5m_transductive_valid.txt": "valid.txt",
            "wikidata5m_transductive_test.txt": "test.txt",
        },
    ),
}
