"""Calls of `tf.keras.preprocessing` that Keras and Meshflow both run."""

import random

import numpy as np

PREPARE = """
import json
texts = ['The cat sat; on the mat.', 'A DOG, and the cat', '', ['Own', 'words', 'cat']]
def fitted(**kwargs):
    made = text.Tokenizer(**kwargs)
    made.fit_on_texts(texts)
    return made
data = np.arange(24).reshape(12, 2)
"""
CASES = [
    "text.text_to_word_sequence('Is this, a  test? Yes-it is!')",
    "text.text_to_word_sequence('A,b;c', filters=';', lower=False, split=',')",
    "text.hashing_trick('one two three one', 50, 'md5')",
    "text.hashing_trick('one two', 50, len, analyzer=lambda t: list(t))",
    "len(text.one_hot('one two', 5))",
    "fitted().word_index",
    "fitted().texts_to_sequences(texts + ['unknown cat'])",
    "fitted(num_words=3).texts_to_sequences(texts)",
    "fitted(num_words=4, oov_token='?').texts_to_sequences(texts + ['unknown cat'])",
    "fitted(oov_token='?').word_index",
    "text.Tokenizer(char_level=True).texts_to_sequences(['abc'])",
    "fitted(char_level=True).word_index",
    "fitted(lower=False, filters='').word_index",
    "fitted(analyzer=lambda t: t.split('a')).word_counts",
    "fitted().sequences_to_texts([[1, 2, 99], [3]])",
    "fitted(num_words=3, oov_token='?').sequences_to_texts([[1, 2, 99, 5], [3]])",
    "fitted().texts_to_matrix(texts)",
    "fitted(num_words=5).texts_to_matrix(texts, 'count')",
    "fitted().texts_to_matrix(texts, 'freq')",
    "fitted().texts_to_matrix(texts, 'tfidf')",
    "fitted().texts_to_matrix(texts, 'other')",
    "text.Tokenizer().texts_to_matrix(texts)",
    "text.Tokenizer(5).sequences_to_matrix([[1]], 'tfidf')",
    "text.Tokenizer(other=1)",
    "(lambda t: (t.fit_on_sequences([[1, 2], [2, 2]]), t.sequences_to_matrix([[1, 2, 2]], 'tfidf')))(text.Tokenizer(4))",
    "[fitted().document_count, dict(fitted().word_docs), dict(fitted().index_docs)]",
    "{k: sorted(json.loads(v).items()) if k[:4] in ('word', 'inde') else v for k, v in fitted(oov_token='?').get_config().items()}",
    "text.tokenizer_from_json(fitted(num_words=5).to_json()).texts_to_matrix(texts, 'tfidf')",
    "sequence.make_sampling_table(20)",
    "sequence.skipgrams([1, 2, 0, 3, 4], 5, 2, 0.0, shuffle=False)",
    "sequence.skipgrams([1, 2, 3, 4], 9, 1, 1.5, seed=3)",
    "sequence.skipgrams([1, 2, 3, 4], 9, 1, 1.0, seed=3, categorical=True)",
    "sequence.skipgrams(list(range(9)), 9, sampling_table=sequence.make_sampling_table(9, 1e-2), seed=1)",
    "[list(sequence.TimeseriesGenerator(data, data[:, 0], 4, batch_size=3)[i]) for i in range(3)]",
    "[list(sequence.TimeseriesGenerator(data, data, 4, 2, 3, 1, 10, False, True, 2)[i]) for i in range(2)]",
    "len(sequence.TimeseriesGenerator(data, data, 4, 2, 3, 1, 10, batch_size=2))",
    "list(sequence.TimeseriesGenerator(data, data, 4, shuffle=True, batch_size=3)[0])",
    "sequence.TimeseriesGenerator(data, data[:4], 4)",
    "sequence.TimeseriesGenerator(data, data, 12)",
    "sequence.TimeseriesGenerator(data[:5], data[:5], 2).to_json()",
]


def plain(value):
    """A result as JSON."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value


def run(tf, text):
    """The result of a case, or the classes of its error."""
    random.seed(5)
    np.random.seed(5)
    preprocessing = tf.keras.preprocessing
    names = {"text": preprocessing.text, "sequence": preprocessing.sequence, "np": np}
    exec(PREPARE, names)
    try:
        return plain(eval(text, names))
    except Exception as error:
        return {"error": [c.__name__ for c in type(error).__mro__[:-3]]}
