//! The kernels as they were compiled for devices, and which of them a device takes.

/// What an image was compiled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Machine code for this architecture and no other, with what only it has (`sm_90a`).
    Exact,
    /// Machine code for this architecture and later ones of the same major number.
    Code,
    /// Intermediate code, which the driver compiles for this architecture or any later one, when it is loaded.
    Portable,
}

/// The kernels, compiled.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// The architecture.
    pub capability: (u32, u32),
    /// What it was compiled to.
    pub form: Form,
    /// Its bytes; of intermediate code the text, and a zero.
    pub bytes: &'static [u8],
}

/// The kernels as `kernels/check --update` left them.
pub const IMAGES: &[Image] = &[
    Image { capability: (8, 0), form: Form::Code, bytes: include_bytes!("../../../../../kernels/prebuilt/sm_80.cubin") },
    Image { capability: (9, 0), form: Form::Code, bytes: include_bytes!("../../../../../kernels/prebuilt/sm_90.cubin") },
    Image { capability: (9, 0), form: Form::Exact, bytes: include_bytes!("../../../../../kernels/prebuilt/sm_90a.cubin") },
    // The driver reads a text up to its zero.
    Image {
        capability: (9, 0),
        form: Form::Portable,
        bytes: concat!(include_str!("../../../../../kernels/prebuilt/compute_90.ptx"), "\0").as_bytes(),
    },
];

impl Image {
    fn fits(&self, device: (u32, u32)) -> bool {
        match self.form {
            Form::Exact => self.capability == device,
            Form::Code => self.capability.0 == device.0 && self.capability.1 <= device.1,
            Form::Portable => self.capability <= device,
        }
    }
}

/// The images that a device may take, those first that know it best: the newest architecture, and of that the most special. A driver that does not take
/// one may take the next.
#[must_use]
pub fn choose(images: &[Image], device: (u32, u32)) -> Vec<&Image> {
    let special = |form| match form {
        Form::Exact => 2,
        Form::Code => 1,
        Form::Portable => 0,
    };
    let machine = |form| form != Form::Portable;
    let mut fitting: Vec<&Image> = images.iter().filter(|image| image.fits(device)).collect();
    fitting.sort_by_key(|image| std::cmp::Reverse((machine(image.form), image.capability, special(image.form))));
    fitting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_gets_the_image_that_knows_it_best() {
        let chosen = |device| choose(IMAGES, device).into_iter().map(|image| (image.capability, image.form)).collect::<Vec<_>>();
        assert_eq!(chosen((8, 0)), [((8, 0), Form::Code)]);
        assert_eq!(chosen((8, 9)), [((8, 0), Form::Code)]);
        assert_eq!(chosen((9, 0)), [((9, 0), Form::Exact), ((9, 0), Form::Code), ((9, 0), Form::Portable)]);
        assert_eq!(chosen((10, 0)), [((9, 0), Form::Portable)]);
        assert_eq!(chosen((12, 1)), [((9, 0), Form::Portable)]);
        assert_eq!(chosen((7, 5)), []);
    }

    #[test]
    fn machine_code_is_of_the_architecture_that_it_is_kept_for() {
        for image in IMAGES {
            if image.form == Form::Portable {
                let text = std::str::from_utf8(image.bytes).unwrap();
                assert!(text.ends_with('\0') && text.matches('\0').count() == 1 && text.contains(".target sm_90\n"));
                continue;
            }
            // The file says which chip it is for: in its flags as compilers up to CUDA 12 put it, or one byte further on.
            assert_eq!(image.bytes[..4], *b"\x7fELF");
            let (major, minor) = image.capability;
            let chip = (major * 10 + minor) as u8;
            assert!(image.bytes[48..52].contains(&chip), "{:?}: {:x?}", image.capability, &image.bytes[48..52]);
        }
    }
}
