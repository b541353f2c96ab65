"""`python -m datarax_ray` is `datarax-ray`."""

from datarax_ray.cli import main

if __name__ == "__main__":
    main()
