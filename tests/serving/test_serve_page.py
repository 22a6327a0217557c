"""The page in a browser: texts are typed, and the marked answer is read from the screen.

`make browser` installs what it takes: Debian's Chromium with its driver, and the extras `ui` and
`browser`. The screenshots lie in $BERTFAM_SCREENSHOTS where it is set.
"""

import json
import os
import pathlib
import shutil
import urllib.parse
import urllib.request

import pytest
import tensorflow as tf

pytest.importorskip("nicegui", reason="the page needs the extra ui: make browser")
pytest.importorskip("selenium", reason="driving a browser needs the extra browser: make browser")
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from tensorflow_text import WhitespaceTokenizer

import bertfam_tf as bf
from tests.serving.process import start

PATIENCE_S = 60
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",
    "--window-size=900,900",
    # Whatever would ask another host fails.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]
CONTEXT = "Überall 🙂 <b>bold</b>: the tower was finished in 1889,\nand has 1,665 steps & stairs."

pytestmark = pytest.mark.browser


class Numbers(tf.Module):
    """Span QA by rule: the answer is the first number of the context."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, "context"),
            tf.TensorSpec([None], tf.string, "question"),
        ]
    )
    def answer(self, context, question):
        tf.debugging.assert_none_equal(question, "", message="a question is needed")
        number = tf.strings.regex_replace(context, r"(?s)^[^0-9]*([0-9]+).*$", r"\1")
        before = tf.strings.regex_replace(context, r"(?s)^([^0-9]*)[0-9].*$", r"\1")
        start = tf.strings.length(before, "UTF8_CHAR")
        end = start + tf.strings.length(number, "UTF8_CHAR")
        score = tf.fill(tf.shape(start), 0.875)
        return {
            "answer": number,
            "start": start,
            "end": end,
            "score": score,
            "n_best_answers": tf.stack([number, tf.fill(tf.shape(number), "")], 1),
            "n_best_scores": tf.stack([score, tf.zeros_like(score)], 1),
        }


class Capitals(tf.Module):
    """Words with tags by rule: those that begin with a capital are names."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def answer(self, text):
        words, starts, ends = WhitespaceTokenizer().tokenize_with_offsets(text)
        # Offsets are bytes: right for the text of the test, which is ASCII.
        capital = tf.strings.regex_full_match(words.flat_values, r"\p{Lu}.*")
        tags = words.with_flat_values(tf.where(capital, "NAME", "O"))
        return {
            "tokens": words.to_tensor(),
            "tags": tags.to_tensor(),
            "scores": tf.ones_like(starts.to_tensor(), tf.float32),
            "offsets": tf.stack([starts.to_tensor(-1), ends.to_tensor(-1)], 2),
            "count": words.row_lengths(),
        }


@pytest.fixture(scope="module")
def models(tmp_path_factory, smallest):
    """Name to base path: the rules, and real exports of small tasks."""
    folder = tmp_path_factory.mktemp("models")
    for name, module in (("numbers", Numbers()), ("entities", Capitals())):
        signatures = {"serving_default": module.answer.get_concrete_function()}
        tf.saved_model.save(module, str(folder / name / "1"), signatures=signatures)
    bf.SpanQA.from_pretrained(smallest).export(folder / "answers")
    bf.TextClassifier.from_pretrained(smallest, pair=False).export(folder / "feelings")
    return {path.name: path for path in sorted(folder.iterdir(), reverse=True)}


@pytest.fixture(scope="module")
def url(models):
    config = "".join(
        f'config {{ name: "{name}" base_path: "{path}" model_platform: "tensorflow" }} '
        for name, path in models.items()
    )
    file = models["numbers"].parent / "models.config"
    file.write_text(f"model_config_list {{ {config} }}")
    flags = ["--ui", f"--model-config-file={file}", "--rest-port=0", "--grpc-port=-1"]
    with start("-m", "bertfam_serve", *flags, stderr=None) as process:
        try:
            address = process.stdout.readline().split()[-1].removesuffix("/v1/models")
            assert process.stdout.readline() == f"Page at {address}/ui/\n"
            yield address
        finally:
            process.terminate()
            process.wait(30)


def test_the_root_leads_to_the_page(url):
    with urllib.request.urlopen(url) as answer:
        assert answer.geturl() == f"{url}/ui/"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("needs Debian's chromium and chromium-driver: make browser")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield browser
    browser.quit()


class Screen:
    """What a person does on the page, and sees."""

    def __init__(self, browser, url):
        self._browser = browser
        browser.get(f"{url}/ui/")
        self.wait(lambda: self.all("button.ask"))

    def wait(self, condition):
        return WebDriverWait(self._browser, PATIENCE_S).until(lambda _: condition())

    def all(self, selector):
        return self._browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        (found,) = self.all(selector)
        return found

    def texts(self, selector):
        # At once: elements that are found may be gone when they are read.
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText.trim())"
        return self._browser.execute_script(script, selector)

    def choose(self, model):
        self.one(".q-select").click()
        options = self.wait(lambda: self.all(".q-menu .q-item"))
        next(option for option in options if option.text == model).click()
        self.wait(lambda: f"{model}, version 1" in self.one("body").text)
        self.wait(lambda: not self.all(".q-menu"))

    def type(self, field, text):
        box = self.one(f'textarea[data-field="{field}"]')
        # The driver types characters of the basic plane alone.
        self._browser.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))",
            box,
            text,
        )
        return box

    def ask(self):
        self.one("button.ask").click()
        self.wait(lambda: self.all(".answer"))

    def save(self, name):
        folder = os.environ.get("BERTFAM_SCREENSHOTS")
        if folder:
            self._browser.save_screenshot(str(pathlib.Path(folder) / f"{name}.png"))


@pytest.fixture
def screen(browser, url):
    return Screen(browser, url)


def test_the_answer_is_marked_in_its_context(screen):
    screen.choose("numbers")
    screen.type("question", "When was the tower finished?")
    screen.type("context", CONTEXT)
    screen.ask()
    assert screen.texts(".answer mark") == ["1889answer"]
    assert screen.one(".answer .text").text == CONTEXT.replace("1889", "1889answer")
    assert screen.texts(".answer .value") == ["1889"]
    assert screen.texts(".answer .bar") == ["1889\n87.5%"]
    assert not screen.all(".answer b:not([style])"), "markup in a text is text"
    screen.save("numbers")


def test_keys_ask_too_and_answers_follow_each_other(screen):
    screen.choose("numbers")
    screen.type("question", "When?")
    screen.type("context", "In 1066.").send_keys(Keys.CONTROL, Keys.ENTER)
    screen.wait(lambda: screen.texts(".answer .value") == ["1066"])
    screen.type("context", "In 1453.").send_keys(Keys.CONTROL, Keys.ENTER)
    screen.wait(lambda: screen.texts(".answer .value") == ["1453"])


def test_a_models_complaint_is_shown_and_the_page_goes_on(screen):
    screen.choose("numbers")
    screen.one("button.ask").click()
    screen.wait(lambda: "a question is needed" in " ".join(screen.texts(".q-notification")))
    screen.type("question", "When?")
    screen.type("context", "In 1066.")
    screen.ask()
    assert screen.texts(".answer .value") == ["1066"]


def test_a_real_export_answers_with_a_part_of_the_context(screen, models):
    screen.choose("answers")
    question, context = "Who wrote it?", "A novel, which Émile wrote in the year he died."
    screen.type("question", question)
    screen.type("context", context)
    screen.ask()
    answer = screen.one(".answer .value").text
    assert answer
    assert answer in context
    # The highlight is the API's answer to the same text.
    assert screen.one(".answer mark").text == f"{answer}answer"
    assert len(screen.all(".answer .bar")) == 5


def test_a_real_classifier_has_a_bar_for_each_label(screen):
    screen.choose("feelings")
    screen.type("text", "a fine film")
    screen.ask()
    percent = [float(text.split("\n")[-1].rstrip("%")) for text in screen.texts(".answer .bar")]
    assert len(percent) == 3
    assert percent == sorted(percent, reverse=True)
    assert sum(percent) == pytest.approx(100, abs=0.2)
    label = screen.one(".answer .value").text
    assert label in ("negative", "neutral", "positive")
    assert screen.texts(".answer .bar")[0].startswith(label)


def test_entities_are_marked_in_the_text(screen):
    screen.choose("entities")
    screen.type("text", "Anna  Schmidt lives\nin Kiel")
    screen.ask()
    assert screen.one(".answer .text").text == "AnnaNAME  SchmidtNAME lives\nin KielNAME"
    assert len(screen.all(".answer mark")) == 3


def test_no_other_host_is_asked_and_nothing_fails(browser, url):
    Screen(browser, url)
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {
        urllib.parse.urlsplit(message["params"][key]["url"] if key else message["params"]["url"])
        for message in messages
        for method, key in (
            ("Network.requestWillBeSent", "request"),
            ("Network.webSocketCreated", None),
        )
        if message["method"] == method
    }
    # Of the browser itself: its empty first page.
    hosts = {part.netloc for part in asked if part.scheme not in ("data", "blob", "chrome")}
    assert hosts == {urllib.parse.urlsplit(url).netloc}
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
