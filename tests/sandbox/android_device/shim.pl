#!/usr/bin/perl
# One program of the simulated device, under each of its names: hands its arguments to commands.py and prints the answer. In Perl, which
# every Debian has and which starts in a few milliseconds.
use strict;
use warnings;
use Socket;

my ($name) = $0 =~ m{([^/]+)$};
socket(my $peer, PF_UNIX, SOCK_STREAM, 0) or die "$name: no socket: $!\n";
connect($peer, sockaddr_un("/run/device/commands")) or die "$name: the device is gone: $!\n";
syswrite($peer, join("\0", $name, @ARGV));
shutdown($peer, 1);
binmode(STDOUT);
my $answer = do { local $/; <$peer> };
my ($code, $length, $rest) = $answer =~ /^(\d+) (\d+)\n(.*)$/s or die "$name: the device answered nothing\n";
my $output = substr($rest, 0, $length);
if ($name eq "uiautomator" && $code == 0) {    # its output goes into the file that it was given
    open(my $file, ">", $ARGV[1]) or die "$name: $ARGV[1]: $!\n";
    print $file $output;
    close($file);
    $output = "UI hierchary dumped to: $ARGV[1]\n";
}
print $output;
print STDERR substr($rest, $length);
exit $code;
