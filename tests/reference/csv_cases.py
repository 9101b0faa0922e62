"""CSV files, and datasets of them that TensorFlow and Meshflow both make."""

FILES = {
    "plain.csv": "x,y,name\n1,0.5,one\n2,,two\n3,2.5,\n4,3.5,four\n5,4.5,five\n",
    "quoted.csv": 'a;b\n1;"say ""hi"""\n2;"two\nlines"\n3;"semi;colon"\n',
    "kinds.csv": "i,l,f,d,s,n\n1,5000000000,1.5,1e300,a,\n-2,1,2,3,4,\n,,,,,\n",
    "bare.csv": "1,2\n3,4\n5,6\n",
    "na.csv": "x,y\nNA,1\n2,NA\n",
    "bad.csv": "x,y\n1,2\nthree,4\n5\n6,7\n",
    "more.csv": "x,y,name\n9,9.5,nine\n8,8.5,eight\n",
}
CASES = [
    "E.CsvDataset('plain.csv', [tf.int32, 0.0, tf.constant(['none'])], header=True)",
    "E.CsvDataset('plain.csv', [7.5, tf.constant([], tf.string)], header=True, select_cols=[1, 0])",
    "E.CsvDataset('plain.csv', [tf.int32, 'd'], header=True, select_cols=[0, 2])",
    "E.CsvDataset('plain.csv', ['d'], header=True, select_cols=[2])",
    "E.CsvDataset('plain.csv', ['d', 'e'], header=True, exclude_cols=[0])",
    "E.CsvDataset('plain.csv', [tf.int32, tf.float32, 'd'], header=True)",
    "E.CsvDataset('plain.csv', [tf.int32, 0.0], header=True)",
    "E.CsvDataset(['bare.csv', 'bare.csv'], [tf.int64, tf.float64])",
    "E.CsvDataset('quoted.csv', [tf.int32, tf.string], header=True, field_delim=';')",
    "E.CsvDataset('na.csv', [-1, -2.0], header=True, na_value='NA')",
    "E.CsvDataset('bad.csv', [tf.int32, tf.int32], header=True)",
    "E.CsvDataset('bad.csv', [tf.int32, tf.int32], header=True).apply(E.ignore_errors())",
    "E.CsvDataset('nowhere.csv', [tf.int32])",
    "E.CsvDataset('bare.csv', [tf.int32, tf.bool])",
    "E.make_csv_dataset('plain.csv', 2, num_epochs=1, shuffle=False)",
    "E.make_csv_dataset('plain.csv', 2, label_name='y', num_epochs=2, shuffle=False)",
    "E.make_csv_dataset('plain.csv', 3, shuffle=False).take(3)",
    "E.make_csv_dataset('kinds.csv', 3, num_epochs=1, shuffle=False)",
    "E.make_csv_dataset('plain.csv', 9, select_columns=['name', 'x'], num_epochs=1, shuffle=False)",
    "E.make_csv_dataset('plain.csv', 9, select_columns=[2, 0], column_defaults=[tf.int64, ['z']], num_epochs=1, shuffle=False)",
    "E.make_csv_dataset('bare.csv', 2, header=False, column_names=['p', 'q'], num_epochs=1, shuffle=False)",
    "E.make_csv_dataset(['plain.csv', 'more.csv'], 4, num_epochs=1, shuffle=False)",
    "E.make_csv_dataset(['plain.csv', 'more.csv'], 4, num_epochs=1, shuffle=False, num_parallel_reads=2)",
    "E.make_csv_dataset('[mp]*.csv', 4, num_epochs=1, shuffle=False)",
    "E.make_csv_dataset('bad.csv', 4, column_defaults=[tf.int32, tf.int32], num_epochs=1, shuffle=False, ignore_errors=True)",
    "E.make_csv_dataset('na.csv', 4, na_value='NA', num_epochs=1, shuffle=False)",
    "E.make_csv_dataset('plain.csv', 2, label_name='w')",
    "E.make_csv_dataset('none*.csv', 2)",
    "E.make_csv_dataset('bare.csv', 2, header=False)",
    "E.make_csv_dataset('bad.csv', 2)",
    "E.make_csv_dataset(['plain.csv', 'bare.csv'], 2)",
    "E.make_csv_dataset('plain.csv', 2, select_columns=['x', 'w'])",
    "E.make_csv_dataset('plain.csv', 2, select_columns=['x', 'x'])",
    "E.make_csv_dataset('plain.csv', 2, column_defaults=[tf.int32])",
    "E.make_csv_dataset('plain.csv', 2, column_names=['x', 'x', 'y'])",
]


def plain(value):
    """An element as JSON."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    array = value.numpy()
    if value.dtype.name == "string":
        bare = array.tolist() if hasattr(array, "tolist") else array
        return ["string", [b.decode() for b in bare] if isinstance(bare, list) else bare.decode()]
    return [value.dtype.name, array.tolist()]


def run(tf, text):
    """Elements and spec of a case, or the classes of its error, as JSON."""
    found = []
    try:
        dataset = eval(text, {"tf": tf, "E": tf.data.experimental})
        for element in dataset:
            found.append(plain(element))
    except Exception as error:
        return {"error": [c.__name__ for c in type(error).__mro__[:-3]], "elements": found}
    spec = [[s.shape.as_list(), s.dtype.name] for s in tf.nest.flatten(dataset.element_spec)]
    return {"elements": found, "spec": spec}
