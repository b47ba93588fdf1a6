"""What can be asked of a trained model: one method for each question."""

from collections.abc import Iterable, Iterator, Sequence

from bert_jax.interop import checkpoints
from bert_jax.prediction import (
    answering,
    batching,
    choosing,
    classifying,
    features,
    filling,
    pairs,
    tagging,
    text_rows,
)
from bert_jax.prediction.text_rows import Text
from bert_jax.prediction.trained import Trained


class Model(Trained):
    """A trained model on one device.

    Each question needs a checkpoint that can answer it, and says so where it is not
    one. Texts are a list, and a pair of texts is a tuple.
    """

    def fill(
        self, texts: Sequence[str], top: int = 5
    ) -> list[list[list[filling.Guess]]]:
        """The most probable words for each `[MASK]` of each text.

        Words that the vocabulary has as one token: pieces and punctuation are left out.
        Only here does `[MASK]` in a text mean a blank; the tokenizer takes it as text.
        So does what the vocabulary itself calls it, such as RoBERTa's `<mask>`.

        Args:
          texts: Texts with at least one blank each.
          top: Number of guesses.

        Returns:
          For each text, for each blank, guesses from the best down.

        Raises:
          UserError: A text has no blank or is too long (`TextError`), or the model has
            no head for masked tokens.
        """
        return filling.fill(self, texts, top)

    def next_probability(self, first: str, second: str) -> float:
        """The probability that the second text follows the first.

        Raises:
          UserError: A text is empty, both are too long (`TextError`), or the model has
            no head for next sentences.
        """
        return pairs.next_probability(self, first, second)

    def classify(
        self, texts: Sequence[Text]
    ) -> list[classifying.Classified] | list[classifying.Measured]:
        """The class of each text or pair, with the probability of each class.

        A model that was fine-tuned to predict numbers gives a number for each.

        Raises:
          UserError: The checkpoint is not one of classification.
        """
        return classifying.classify(self, texts)

    def answer(
        self,
        questions: Sequence[str],
        contexts: Sequence[str],
        null_threshold: float | None = None,
    ) -> list[answering.Answered]:
        """The part of its context that answers each question.

        It is decided as in the files that the fine-tuning wrote.

        Args:
          questions: Questions.
          contexts: Context of each question.
          null_threshold: Null odds above which a question has no answer, if there may
            be none; None: those of the fine-tuning.

        Raises:
          UserError: The checkpoint is not one of SQuAD, or the lists differ in length.
        """
        return answering.answer(self, questions, contexts, null_threshold)

    def tag(self, texts: Sequence[str | Sequence[str]]) -> list[tagging.Tagged]:
        """The tag of each word, and the entities that the tags name.

        Args:
          texts: Texts, or lists of words. A text is split into runs of letters and
            digits and into other signs; where the training file has other words, such
            as "don't", lists of words are better.

        Raises:
          UserError: The checkpoint is not one of tagging.
        """
        return tagging.tag(self, texts)

    def choose(
        self, questions: Sequence[str], choices: Sequence[Sequence[str]]
    ) -> list[choosing.Chosen]:
        """Which of its choices answers each question.

        Args:
          questions: Questions.
          choices: Choices of each question, two or more.

        Raises:
          UserError: The checkpoint is not one of multiple choice, the lists differ in
            length, or a question has no choice (`TextError`).
        """
        return choosing.choose(self, questions, choices)

    def features(
        self,
        texts: Iterable[Text],
        layers: Sequence[int] = (-1,),
        pool: str = "none",
        length: int = 0,
        batch_size: int = batching.BATCH_SIZE,
    ) -> Iterator[features.Features]:
        """Vectors of the encoder, as ELMo's are used (BERT paper, 5.3).

        Texts are read as they are needed, a few batches ahead, so that there may be any
        number of them; vectors come in their order.

        Args:
          texts: Texts and pairs. An empty text has the vectors of [CLS] and [SEP].
          layers: Which layers: -1 is the last one, -2 the one before; 1 is the first
            one, and 0 the embeddings.
          pool: "none" for a vector of each token; else one for each text: "cls" that of
            [CLS], "mean" and "max" over all tokens, [CLS] and [SEP] among them.
          length: Tokens of a text or pair, special tokens included; what is longer is
            truncated. 0: as many as the model has positions.
          batch_size: Texts that go through the model at once, at most.

        Raises:
          UserError: There is no such layer, or an argument has another wrong value.
        """
        text_rows.check_list(texts)
        asked = features.Hidden(self.encoder, tuple(layers), pool)
        features.check(asked, length, batch_size)
        length = length or self.encoder.max_position_embeddings
        return features.stream(self, asked, texts, length, batch_size)


def load(path: str) -> Model:
    """Load a trained model.

    Args:
      path: Workdir of a run, one checkpoint in it, or a folder of another project
        (docs/interop.md).

    Raises:
      UserError: There is no such checkpoint.
    """
    source = checkpoints.find(path)
    return Model(str(source), checkpoints.read_metadata(source))
