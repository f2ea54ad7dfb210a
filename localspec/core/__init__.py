"""What every package needs: errors, parameters, paths, files, the machine, formatting."""
