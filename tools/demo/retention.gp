# SPDX-License-Identifier: Apache-2.0
# Draws what the demonstration measured, by layer. Variables: folder (of layers-none.dat and layers-rpb.dat, lines
# "layer overlap top1 tvd jsd"), picture (the SVG to write).
set terminal svg size 720,280 font "sans-serif,12" background "white"
set output picture
set multiplot layout 1,2
set style data histograms
set style histogram clustered gap 1
set style fill solid 0.9 noborder
set boxwidth 0.9
stats folder."/layers-none.dat" using 1 nooutput name "layers"
set xrange [-0.6:layers_records - 0.4]
set grid ytics lc rgb "#dddddd"
set border 3 lc rgb "#555555"
set tics nomirror
set xlabel "MoE layer"
set key above right horizontal
set yrange [0:*]
set ytics 0.02
set title "TVD of expert use against the base"
plot folder."/layers-none.dat" using 4:xtic(1) title "none" lc rgb "#c0622d", \
  folder."/layers-rpb.dat" using 4 title "rpb" lc rgb "#2d6f9e"
set yrange [0:1]
set ytics 0.2
set title "Top-4 overlap with the base"
plot folder."/layers-none.dat" using 2:xtic(1) title "none" lc rgb "#c0622d", \
  folder."/layers-rpb.dat" using 2 title "rpb" lc rgb "#2d6f9e"
unset multiplot
