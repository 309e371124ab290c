"""The page in headless Chromium: filter, keys, hover, light and dark; what is coloured is what the mask says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from packloom.datasets import write_shards
from packloom.report.gallery import Choice, Gallery, open_gallery
from packloom.report.page import write_page
from packloom.report.samples import load_encoder
from packloom.report.spec import DataSpec, EncoderSpec

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install selenium")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="needs chromium and chromedriver")

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--window-size=1300,900",
)  # fmt: skip


def film(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its images as the frames of one video."""
    content = row["json"]["messages"][0]["content"]
    content[:] = [{"type": "video", "video": [f"{n}.jpg" for n in range(8)], "fps": 2.0}, content[-1]]
    return row


@pytest.fixture(scope="module")
def gallery(
    tmp_path_factory: pytest.TempPathFactory, encoder_spec: EncoderSpec, make_talk: Any, make_jpeg: Any
) -> Gallery:
    folder = tmp_path_factory.mktemp("browser") / "shards"
    rows = [
        make_talk("cat-1", "What <b>is</b> it?", "A cat 🐈.\n\nIt sleeps.", "Sure?", "Yes."),
        make_talk("dog-1", "What is it?", "A dog.", images=[make_jpeg(140, 84), make_jpeg(56, 56)]),
        make_talk("cat-2", "<script>document.title='stolen'</script>", "An odd cat."),
        film(make_talk("film", "What moves?", "All.", images=[make_jpeg(112, 84)] * 8)),
        make_talk("cut", "?", "A.", images=[b"no picture"]),
    ]
    write_shards(rows, folder)
    choice = Choice(pack_length=640, segment_multiple=4)
    return open_gallery(DataSpec(path=(str(folder),)), load_encoder(encoder_spec), choice)


@pytest.fixture(scope="module")
def browser(gallery: Gallery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("chromium")
    write_page(gallery, folder / "page.html")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*_FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        driver.get((folder / "page.html").as_uri())
        yield driver
        assert driver.get_log("browser") == []  # no error, and nothing that its policy had to forbid
    finally:
        driver.quit()


def press(browser: Any, *keys: str) -> None:
    for key in keys:
        webdriver.ActionChains(browser).send_keys(key).perform()


def texts(browser: Any, selector: str) -> list[str]:
    return [element.text for element in browser.find_elements("css selector", selector)]


def coloured(browser: Any, selector: str) -> list[int]:
    """The places of the tokens that match."""
    script = "return [...document.querySelectorAll(arguments[0])].map(t => [+t.dataset.start, +t.dataset.count])"
    return [start + n for start, count in browser.execute_script(script, selector) for n in range(count)]


def backgrounds(browser: Any, selector: str) -> set[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map(t => getComputedStyle(t).backgroundColor)"
    return set(browser.execute_script(script, selector))


def test_it_opens_on_the_first_sample_and_steps_by_keys(browser: Any) -> None:
    assert texts(browser, "main h2") == ["cat-1"]
    assert texts(browser, "nav .key") == ["cat-1", "dog-1", "cat-2", "film"]
    press(browser, "j")
    assert texts(browser, "main h2") == ["dog-1"]
    press(browser, "j")
    assert "<script>" in browser.find_element("css selector", ".flow").text
    assert browser.title.startswith("packloom inspect")
    press(browser, "j", "j", "j")
    assert texts(browser, "main h2") == ["film"]  # the last one
    press(browser, "k", "k", "k")
    assert texts(browser, "main h2") == ["cat-1"]


def test_what_is_coloured_is_what_is_trained_on(browser: Any, gallery: Gallery) -> None:
    for sample in gallery.samples:
        assert texts(browser, "main h2") == [sample.key]
        assert coloured(browser, ".flow .t") == list(range(sample.num_tokens))
        assert coloured(browser, ".flow .trained") == sample.loss_mask.nonzero().flatten().tolist()
        assert not backgrounds(browser, ".flow .x.trained") & backgrounds(browser, ".flow .x:not(.trained)")
        ends = coloured(browser, ".flow .t.e")
        assert {int(sample.input_ids[place]) for place in ends} == {gallery.encoder.chat.token_id("<|im_end|>")}
        press(browser, "j")
    press(browser, "k", "k", "k")


def test_filter_by_key(browser: Any) -> None:
    press(browser, "/", "d", "o", "g", webdriver.Keys.ENTER)
    assert texts(browser, "nav .key") == ["dog-1"]
    assert texts(browser, "main h2") == ["dog-1"]
    field = browser.find_element("css selector", "nav .filter")
    field.send_keys("x")
    assert texts(browser, "nav li") == ["no key matches"]
    field.send_keys(webdriver.Keys.BACKSPACE * 4, webdriver.Keys.ESCAPE)
    assert len(texts(browser, "nav .key")) == 4
    press(browser, "/", "d", webdriver.Keys.ENTER, "/", "c", "a", webdriver.Keys.ENTER)  # a new filter each time
    assert texts(browser, "nav .key") == ["cat-1", "cat-2"]
    press(browser, "x")
    assert texts(browser, "main h2") == ["0 of 1 skipped samples match the filter"]
    press(browser, "/", webdriver.Keys.BACKSPACE, webdriver.Keys.ENTER, "s")


def test_frames_with_their_times(browser: Any, gallery: Gallery) -> None:
    browser.find_elements("css selector", "nav .key")[3].click()
    [sample] = [sample for sample in gallery.samples if sample.key == "film"]
    assert texts(browser, ".when") == [f"{n / 2:.2f} s" for n in range(8)]
    steps = browser.find_elements("css selector", ".step")
    assert [len(step.find_elements("css selector", "img")) for step in steps] == [2, 2, 2, 2]
    assert "112 × 84 px, 4.00 s → 8 frames, 4 × 10 × 14 = 560 tokens" in texts(browser, "figcaption")[0]
    frame = browser.find_elements("css selector", ".shot .frame")[5]  # of the third step
    webdriver.ActionChains(browser).move_to_element_with_offset(frame, 2, 2).perform()  # row 6 of 10, column 8 of 14
    start = int((sample.input_ids == gallery.encoder.chat.run_ids["video"]).nonzero()[0])
    time, height, width = sample.position_ids[:, start + 357].tolist()
    assert texts(browser, "#tip")[0].splitlines() == [
        "frame 5 at 2.50 s",
        f"row 6, column 8 · token {start + 357}",
        f"position time {time} · height {height} · width {width}",
    ]


def test_positions_on_hover(browser: Any, gallery: Gallery) -> None:
    browser.find_elements("css selector", "nav .key")[1].click()
    [frame, _] = browser.find_elements("css selector", ".frame")
    size = frame.size
    # the cell in row 2 of 3, column 4 of 5
    by = (int((3.5 / 5 - 0.5) * size["width"]), int((1.5 / 3 - 0.5) * size["height"]))
    webdriver.ActionChains(browser).move_to_element_with_offset(frame, *by).perform()
    start = int((gallery.samples[1].input_ids == gallery.encoder.media_id).nonzero()[0])
    time, height, width = gallery.samples[1].position_ids[:, start + 8].tolist()
    assert texts(browser, "#tip") == [
        f"row 2, column 4 · token {start + 8}\nposition time {time} · height {height} · width {width}"
    ]
    webdriver.ActionChains(browser).move_to_element(browser.find_element("css selector", ".flow .trained")).perform()
    assert "trained on\nposition time" in texts(browser, "#tip")[0]


def test_packs_and_skipped(browser: Any, gallery: Gallery) -> None:
    press(browser, "p")
    assert len(texts(browser, ".pack")) == len(gallery.packs)
    assert len(texts(browser, ".seg")) == 4
    assert "waste" in texts(browser, ".pack .fill")[0]
    press(browser, "x")
    assert "cut" in texts(browser, "td")[0]
    assert "media.unreadable" in texts(browser, "td")[1]
    press(browser, "s")


def test_light_and_dark(browser: Any) -> None:
    script = "return getComputedStyle(document.body).backgroundColor"
    light = browser.execute_script(script)
    press(browser, "d")
    dark = browser.execute_script(script)
    assert (light, dark) == ("rgb(246, 247, 249)", "rgb(20, 23, 28)")
    press(browser, "d")
