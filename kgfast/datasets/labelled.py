"""Labels of entities and relations: ``labels.tsv``, which people read beside the names.

A line holds a name and a label, separated by tabs: ``Q42<TAB>Douglas Adams``. Further columns and
lines of other names are ignored, so that one file serves many graphs.
"""

from pathlib import Path
from typing import TypeVar, cast

from kgfast.datasets.data_files import find_file, numbered_lines, text_of
from kgfast.graph import Names, Vocabulary
from kgfast.text import bad_line, shown

_Names = TypeVar("_Names", bound=Names)


def with_labels(folder: Path, names: _Names, num_entities: int = 0) -> _Names:
    """Return names with the labels from the file of a folder, if there is one.

    If there is a file, entities without names get their numbers, ``0 .. num_entities - 1``, as
    names. A ValueError names file and line if a line has no label, or a second label of a name, and
    the file if no line has a name of the graph.
    """
    file = find_file(folder, "labels.tsv")
    if file is None:
        return names
    entities = names[0] or Vocabulary(map(str, range(num_entities)))
    relations = names[1] or Vocabulary(())
    labels: dict[str, str] = {}
    for number, line in numbered_lines(text_of(file)):
        name, *columns = line.split("\t")
        if not name or not columns or not columns[0].strip():
            raise bad_line(file, number, "expected a name, a tab and a label", line)
        label = columns[0].strip()
        if labels.setdefault(name, label) != label:
            problem = f"{shown(name)} was labelled {shown(labels[name])} before"
            raise bad_line(file, number, problem, line)
    of_entities, of_relations = (
        {name: label for name, label in labels.items() if name in vocabulary}
        for vocabulary in (entities, relations.columns[0])
    )
    if labels and not of_entities and not of_relations:
        raise ValueError(
            f"{file}: no line has a name of this graph: the first name is "
            f"{shown(next(iter(labels)))}, entities are called as {shown(list(entities.names[:3]))}"
        )
    labelled = relations.labelled(of_relations) if names[1] else None
    return cast(_Names, (entities.labelled(of_entities), labelled))


def write_labels(folder: Path, *vocabularies: Vocabulary) -> None:
    """Write ``labels.tsv`` into a folder if names have labels."""
    labels = {name: label for names in vocabularies for name, label in names.labels.items()}
    if labels:
        lines = (f"{name}\t{label}\n" for name, label in labels.items())
        (folder / "labels.tsv").write_text("".join(lines), encoding="utf-8")
