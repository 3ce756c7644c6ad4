"""The compiled simulator: Yosys writes C++, which is adapted and built with g++."""
