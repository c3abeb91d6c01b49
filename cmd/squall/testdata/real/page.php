<?php // What php-fpm serves in the tests: it takes as many milliseconds as it is asked to.
function page($ms) { usleep(1000 * $ms); echo "a page\n"; }
page((int) ($_GET['ms'] ?? 0));
