//! Index arrays to trees: a token for each of n leaves, and two children for each of n − 1 internal nodes.

use crate::shape::{Child, Shape};

/// Child i < n is leaf i; otherwise internal node i − n, which must stand before its parent. The last node is the root.
///
/// # Errors
/// What is wrong, and at which internal node, counting from 0.
pub(crate) fn tree(tokens: Vec<i64>, children: &[i64]) -> Result<Shape, String> {
    let leaves = tokens.len();
    let mut used = vec![false; leaves + children.len() / 2];
    let mut shape = Shape { tokens, children: Vec::with_capacity(children.len() / 2) };
    for (node, pair) in children.as_chunks::<2>().0.iter().enumerate() {
        let mut child = |index: i64| {
            let found = usize::try_from(index).ok().filter(|found| *found < leaves + node);
            let found = found
                .ok_or_else(|| format!("names child {index} for internal node {node}, where only 0 to {} exist", leaves + node - 1))?;
            if std::mem::replace(&mut used[found], true) {
                return Err(format!("names child {index} for internal node {node}, and for another node before"));
            }
            // Both are below the number of nodes, which a request's bound keeps in 32 bits.
            let number = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
            Ok(if found < leaves { Child::Leaf(number(found)) } else { Child::Internal(number(found - leaves)) })
        };
        let (left, right) = (child(pair[0])?, child(pair[1])?);
        shape.join(left, right);
    }
    // n − 1 nodes with two children each, none twice: all but the last node are somebody's child.
    Ok(shape)
}

#[cfg(test)]
mod tests {
    use super::Child::{Internal, Leaf};
    use super::*;

    #[test]
    fn children_are_leaves_first_and_then_earlier_nodes() {
        let tree = tree(vec![7, 8, 9], &[1, 2, 0, 3]).unwrap();
        assert_eq!(tree, Shape { tokens: vec![7, 8, 9], children: vec![(Leaf(1), Leaf(2)), (Leaf(0), Internal(0))] });
    }

    #[test]
    fn what_is_no_tree_is_refused_by_node() {
        let cases: [(&[i64], &str); 4] = [
            (&[0, 3, 1, 2], "names child 3 for internal node 0, where only 0 to 2 exist"),
            (&[0, -1, 1, 2], "names child -1 for internal node 0, where only 0 to 2 exist"),
            (&[0, 1, 1, 2], "names child 1 for internal node 1, and for another node before"),
            (&[0, 0, 1, 2], "names child 0 for internal node 0, and for another node before"),
        ];
        for (children, sentence) in cases {
            assert_eq!(tree(vec![0; 3], children).unwrap_err(), sentence);
        }
    }
}
