"""Your chat templates in, a failing test out as soon as one of them is masked wrongly or a token of it changes.

Copy it into your tests and name your processor and templates; or run it as it is:

PROCESSOR=./my-model pytest examples/test_my_template.py

The first run writes a golden file for each template; commit them.
"""

import os
from pathlib import Path

import pytest

import packloom
from packloom.testing import MaskCase, check_masks, compare_snapshots, read_snapshot, take_snapshot, write_snapshot

PROCESSOR = os.environ.get("PROCESSOR", "demo-out/processor")  # a folder, or a hub name
GOLDEN = Path(os.environ.get("GOLDEN", "golden"))
#: None is the processor's own template; any other text takes its place.
TEMPLATES = {
    "own": None,
    "terse": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% for part in m.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
        "{% else %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
}
#: Conversations as they stand in your data, with the texts that must be trained on.
CASES = [
    MaskCase(
        name="quotes a turn",
        messages=[
            {"role": "user", "content": "What does 'assistant:' mean here?"},
            {"role": "assistant", "content": "It says who speaks."},
            {"role": "user", "content": "Thanks"},
            {"role": "assistant", "content": "You're welcome 🙂"},
        ],
        supervised=["It says who speaks.", "You're welcome 🙂"],
    ),
    MaskCase(
        name="no answer",
        messages=[{"role": "user", "content": "Anyone?"}],
        supervised=None,  # such a row must be refused
    ),
]


@pytest.fixture(scope="module", params=TEMPLATES)
def template(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def encoder(template: str) -> packloom.TaskEncoder:
    return packloom.TaskEncoder.from_pretrained(PROCESSOR, chat_template=TEMPLATES[template])


def test_the_case_matrix(encoder: packloom.TaskEncoder) -> None:
    check_masks(encoder).raise_if_failed()


def test_our_own_conversations(encoder: packloom.TaskEncoder) -> None:
    check_masks(encoder, CASES).raise_if_failed()


def test_no_token_has_changed(encoder: packloom.TaskEncoder, template: str) -> None:
    taken, golden = take_snapshot(encoder), GOLDEN / f"{template}.json"
    if not golden.exists():
        GOLDEN.mkdir(parents=True, exist_ok=True)
        write_snapshot(taken, golden)
        pytest.skip(f"wrote {golden}: look at it and commit it")
    changes = compare_snapshots(read_snapshot(golden), taken)
    if changes:
        pytest.fail("\n".join(map(str, changes)), pytrace=False)
