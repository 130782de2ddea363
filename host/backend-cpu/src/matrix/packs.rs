//! What was packed already for a cell: weights, and screens of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cellwright_cell_graph::Tensor;

use super::{Form, Packed, Product, Screen};
use crate::level::{Kernels, Level};

/// Weights that were packed already, so that the whole of a cell and its halves share them: by tensor, whether it is transposed, factor, form and
/// columns. Tensors are told apart by address, so they must outlive this.
#[derive(Debug)]
pub(crate) struct Packs {
    packed: BTreeMap<(*const Tensor, bool, u32, Form, usize), Arc<Packed>>,
    /// Screens, and the weights that they are of.
    screens: Vec<(Arc<Packed>, Arc<Screen>)>,
    /// What all of them take, and may take.
    bytes: u64,
    bytes_most: u64,
}

impl Packs {
    /// Packs no more than so many bytes. What does not fit is counted, but stays empty: what needs it must not run.
    pub(crate) const fn within(bytes_most: u64) -> Self {
        Self { packed: BTreeMap::new(), screens: Vec::new(), bytes: 0, bytes_most }
    }

    /// A factor times a weight of floats and two dimensions, `[K, N]` or, if it is transposed, `[N, K]`, as that product multiplies it.
    pub(super) fn weight(&mut self, product: &Product, w: &Arc<Tensor>, transposed: bool, alpha: f32) -> Arc<Packed> {
        let (form, n) = (product.form, product.n);
        let key = (Arc::as_ptr(w), transposed, alpha.to_bits(), form, n);
        if let Some(packed) = self.packed.get(&key) {
            return packed.clone();
        }
        let k = w.shape[usize::from(transposed)];
        self.bytes = self.bytes.saturating_add(form.packed_bytes(k, n) as u64);
        let packed = if self.bytes > self.bytes_most {
            Packed { k, ..Packed::default() }
        } else {
            let values = w.data.as_chunks().0;
            product.pack(k, &|row, column| alpha * f32::from_le_bytes(values[if transposed { column * k + row } else { row * n + column }]))
        };
        let packed = Arc::new(packed);
        self.packed.insert(key, packed.clone());
        packed
    }

    /// A screen of a product, if it can have one; that of another one of the same weight and bias, if there is.
    pub(crate) fn screen(&mut self, product: &Product, how: (Level, Kernels)) -> Option<Arc<Screen>> {
        let bytes = self.bytes.saturating_add(Screen::bytes_for(product, how)? as u64);
        let weight = product.weights.first()?;
        let is_same = |(of, screen): &&(Arc<Packed>, Arc<Screen>)| Arc::ptr_eq(of, weight) && screen.has_bias(product);
        if let Some((_, screen)) = self.screens.iter().find(is_same) {
            return Some(screen.clone());
        }
        if bytes > self.bytes_most {
            return None;
        }
        let screen = Arc::new(Screen::new(product, how)?);
        self.bytes = bytes;
        self.screens.push((weight.clone(), screen.clone()));
        Some(screen)
    }

    /// What all weights take as packed, those that did not fit included.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
}
