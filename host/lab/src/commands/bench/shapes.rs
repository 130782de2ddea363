//! The shapes of requests: how long, or which tree; drawn from a distribution or read from a file.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use cellwright_cell_graph::Random;
use cellwright_simulator::workload::{LENGTH_MAX, Lengths, Tree};

use super::load::{LengthSource, ModelKind};

/// Requests drawn in advance; a longer run goes through them again.
const DRAWN: usize = 1 << 16;
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The shape of one request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shape {
    /// So many elements.
    Sequence(u32),
    /// A binary tree.
    Tree(Tree),
}

/// Distinct shapes, and the order in which requests have them.
#[derive(Debug)]
pub(crate) struct Drawn {
    pub(crate) distinct: Vec<Shape>,
    pub(crate) order: Vec<u32>,
}

/// Draws the shapes of requests.
pub(crate) fn draw(source: &LengthSource, model: ModelKind, random: &mut Random) -> anyhow::Result<Drawn> {
    let of_length = |length: u32| match model {
        ModelKind::Chain | ModelKind::Tokens => Shape::Sequence(length),
        ModelKind::Tree => Shape::Tree(Tree::balanced(length)),
    };
    let all: Vec<Shape> = match source {
        LengthSource::Random(Lengths::Fixed(length)) => vec![of_length(*length)],
        LengthSource::Random(lengths) => (0..DRAWN).map(|_| of_length(lengths.draw(random))).collect(),
        LengthSource::File { path, column } => {
            let read = read_file(path, column.as_deref(), model);
            let mut shapes = read.with_context(|| format!("the lengths in {} cannot be used", path.display()))?;
            shuffle(&mut shapes, random);
            shapes
        }
    };
    let mut distinct = all.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let number = |shape: &Shape| distinct.binary_search(shape).ok().and_then(|position| u32::try_from(position).ok()).unwrap_or(0);
    let order = all.iter().map(number).collect();
    Ok(Drawn { distinct, order })
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last + 1));
    }
}

fn read_file(path: &Path, column: Option<&str>, model: ModelKind) -> anyhow::Result<Vec<Shape>> {
    let bytes = fs::metadata(path)?.len();
    ensure!(bytes <= FILE_BYTES_MAX, "it has {bytes} bytes, at most {FILE_BYTES_MAX} are read");
    let text = fs::read_to_string(path)?;
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).peekable();
    let header: Vec<&str> = lines.peek().map(|(_, line)| fields(line)).unwrap_or_default();
    let field = match column {
        None => 0,
        Some(name) => match (header.iter().position(|field| *field == name), name.parse::<usize>()) {
            (Some(position), _) => position,
            (None, Ok(number)) if (1..=header.len()).contains(&number) => number - 1,
            _ => bail!("it has no column `{name}`; it has {}", header.join(", ")),
        },
    };
    // A first line that is no length names the columns.
    if header.get(field).is_some_and(|text| shape(text, model).is_none()) {
        lines.next();
    }
    let read = |(number, line): (usize, &str)| {
        let text = fields(line).get(field).copied().unwrap_or("");
        let wanted = match model {
            ModelKind::Chain | ModelKind::Tokens => "a length",
            ModelKind::Tree => "a number of leaves or a tree like BLBLL",
        };
        shape(text, model).with_context(|| format!("line {}: `{text}` is not {wanted}", number + 1))
    };
    let shapes = lines.map(read).collect::<anyhow::Result<Vec<_>>>()?;
    ensure!(!shapes.is_empty(), "it holds no lengths");
    Ok(shapes)
}

fn fields(line: &str) -> Vec<&str> {
    line.split(['\t', ',']).map(str::trim).collect()
}

fn shape(text: &str, model: ModelKind) -> Option<Shape> {
    let length = text.parse().ok().filter(|length| (1..=LENGTH_MAX).contains(length));
    match model {
        ModelKind::Chain | ModelKind::Tokens => length.map(Shape::Sequence),
        ModelKind::Tree => length.map(Tree::balanced).or_else(|| Tree::preorder(text)).map(Shape::Tree),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_look_like_the_papers() {
        let source = "lognormal".parse().unwrap();
        let drawn = draw(&source, ModelKind::Chain, &mut Random::new(1)).unwrap();
        let lengths: Vec<u64> = drawn
            .order
            .iter()
            .map(|number| match drawn.distinct[*number as usize] {
                Shape::Sequence(length) => u64::from(length),
                Shape::Tree(_) => panic!("a sequence"),
            })
            .collect();
        let mean = lengths.iter().sum::<u64>() as f64 / lengths.len() as f64;
        assert!((23.5..24.7).contains(&mean), "{mean}");
        let long = lengths.iter().filter(|length| **length > 100).count() as f64 / lengths.len() as f64;
        assert!(long < 0.012, "{long}");
        assert_eq!(drawn.order, draw(&source, ModelKind::Chain, &mut Random::new(1)).unwrap().order);
    }

    #[test]
    fn trees_are_numbers_of_leaves_or_preorders() {
        let read = |text: &str| shape(text, ModelKind::Tree);
        assert_eq!(read("3"), Some(Shape::Tree(Tree { leaves: 3, children: vec![[0, 1], [3, 2]] })));
        assert_eq!(read("BLBLL"), Some(Shape::Tree(Tree { leaves: 3, children: vec![[1, 2], [0, 3]] })));
        assert_eq!(["0", "BL", "x"].map(read), [const { None }; 3]);
    }

    #[test]
    fn files_have_columns() {
        let folder = std::env::temp_dir().join(format!("cellwright-shapes-{}", std::process::id()));
        fs::write(&folder, "source,de\na,3\nb,4\n").unwrap();
        let read = |column: Option<&str>| read_file(&folder, column, ModelKind::Chain).map_err(|error| format!("{error:#}"));
        assert_eq!(read(Some("de")), Ok(vec![Shape::Sequence(3), Shape::Sequence(4)]));
        assert_eq!(read(Some("2")), Ok(vec![Shape::Sequence(3), Shape::Sequence(4)]));
        assert_eq!(read(Some("fr")), Err("it has no column `fr`; it has source, de".to_owned()));
        assert_eq!(read(None), Err("line 2: `a` is not a length".to_owned()));
        fs::remove_file(&folder).unwrap();
    }
}
