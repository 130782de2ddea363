//! The shapes of requests: how long, or which tree; drawn from a distribution or read from a file.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};

use cellwright_simulator::Random;

use super::load::{LENGTH_MAX, LengthSource, ModelKind};

/// Requests drawn in advance; a longer run goes through them again.
const DRAWN: usize = 1 << 16;
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The shape of one request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shape {
    /// So many elements.
    Sequence(u32),
    /// A binary tree: the children of each internal node, leaves counted from 0, then internal nodes in order.
    Tree { leaves: u32, children: Vec<[i64; 2]> },
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
        ModelKind::Chain => Shape::Sequence(length),
        ModelKind::Tree => balanced(length),
    };
    let all: Vec<Shape> = match source {
        LengthSource::Fixed(length) => vec![of_length(*length)],
        LengthSource::Lognormal { mu, sigma, max } => (0..DRAWN).map(|_| of_length(lognormal(*mu, *sigma, *max, random))).collect(),
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

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clipped to 1..=max first")]
fn lognormal(mu: f64, sigma: f64, max: u32, random: &mut Random) -> u32 {
    (mu + sigma * random.normal()).exp().round().clamp(1.0, f64::from(max)) as u32
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last + 1));
    }
}

/// A tree whose levels are as full as can be.
pub(crate) fn balanced(leaves: u32) -> Shape {
    let mut level: Vec<i64> = (0..i64::from(leaves)).collect();
    let mut children = Vec::new();
    let mut next = i64::from(leaves);
    while level.len() > 1 {
        let mut above = Vec::with_capacity(level.len().div_ceil(2));
        let mut pairs = level.chunks_exact(2);
        for pair in &mut pairs {
            children.push([pair[0], pair[1]]);
            above.push(next);
            next += 1;
        }
        above.extend_from_slice(pairs.remainder());
        level = above;
    }
    Shape::Tree { leaves, children }
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
            ModelKind::Chain => "a length",
            ModelKind::Tree => "a number of leaves or a tree like BLBLL",
        };
        shape(text, model).with_context(|| format!("line {}: `{text}` is not {wanted}", number + 1))
    };
    let shapes = lines.map(read).collect::<anyhow::Result<Vec<_>>>()?;
    ensure!(!shapes.is_empty(), "it holds none");
    Ok(shapes)
}

fn fields(line: &str) -> Vec<&str> {
    line.split(['\t', ',']).map(str::trim).collect()
}

fn shape(text: &str, model: ModelKind) -> Option<Shape> {
    let length = text.parse().ok().filter(|length| (1..=LENGTH_MAX).contains(length));
    match model {
        ModelKind::Chain => length.map(Shape::Sequence),
        ModelKind::Tree => length.map(balanced).or_else(|| tree(text)),
    }
}

/// A tree in preorder: `B` an internal node, then its left and its right subtree; `L` a leaf.
fn tree(text: &str) -> Option<Shape> {
    let leaves = text.bytes().filter(|byte| *byte == b'L').count();
    let leaves_64 = i64::try_from(leaves).ok()?;
    // From the back, both subtrees of an internal node are on the stack when it comes.
    let (mut stack, mut children) = (Vec::new(), Vec::new());
    let mut leaf = leaves_64;
    for byte in text.bytes().rev() {
        let node = match byte {
            b'L' => {
                leaf -= 1;
                leaf
            }
            b'B' => {
                let (left, right) = (stack.pop()?, stack.pop()?);
                children.push([left, right]);
                leaves_64 + i64::try_from(children.len()).ok()? - 1
            }
            _ => return None,
        };
        stack.push(node);
    }
    let one = stack.len() == 1 && u32::try_from(leaves).is_ok_and(|leaves| leaves <= LENGTH_MAX);
    one.then(|| Shape::Tree { leaves: u32::try_from(leaves).unwrap_or(LENGTH_MAX), children })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preorder_is_a_tree_and_nothing_else_is() {
        assert_eq!(tree("L"), Some(Shape::Tree { leaves: 1, children: vec![] }));
        // ((0 1) 2): the inner pair is internal node 3.
        assert_eq!(tree("BBLLL"), Some(Shape::Tree { leaves: 3, children: vec![[0, 1], [3, 2]] }));
        assert_eq!(tree("BLBLL"), Some(Shape::Tree { leaves: 3, children: vec![[1, 2], [0, 3]] }));
        for text in ["", "B", "LL", "BL", "BLLL", "BxL"] {
            assert_eq!(tree(text), None, "{text}");
        }
    }

    #[test]
    fn a_balanced_tree_has_one_node_less_than_leaves() {
        assert_eq!(balanced(3), Shape::Tree { leaves: 3, children: vec![[0, 1], [3, 2]] });
        let Shape::Tree { children, .. } = balanced(20) else { panic!("a tree") };
        assert_eq!(children.len(), 19);
    }

    #[test]
    fn lengths_look_like_the_papers() {
        let source = "lognormal".parse().unwrap();
        let drawn = draw(&source, ModelKind::Chain, &mut Random::new(1)).unwrap();
        let lengths: Vec<u64> = drawn
            .order
            .iter()
            .map(|number| match drawn.distinct[*number as usize] {
                Shape::Sequence(length) => u64::from(length),
                Shape::Tree { .. } => panic!("a sequence"),
            })
            .collect();
        let mean = lengths.iter().sum::<u64>() as f64 / lengths.len() as f64;
        assert!((23.5..24.7).contains(&mean), "{mean}");
        let long = lengths.iter().filter(|length| **length > 100).count() as f64 / lengths.len() as f64;
        assert!(long < 0.012, "{long}");
        assert_eq!(drawn.order, draw(&source, ModelKind::Chain, &mut Random::new(1)).unwrap().order);
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
